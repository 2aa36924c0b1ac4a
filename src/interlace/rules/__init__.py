"""Small objects with state that is saved and resumed: controllers, regrouping, samplers, update rules."""
