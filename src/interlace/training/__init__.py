"""One update (`step.py`), what it trains on (`collect.py`), and runs (`loop.py`, `stages.py`)."""
