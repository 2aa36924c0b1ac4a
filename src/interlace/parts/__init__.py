"""Pure functions that methods are made of: tensors in, tensors out, nothing averaged but by the reducer."""
