"""The laboratory: trains, reproduces and reports. The library beside it knows nothing of it."""
