"""The two-point primitive: which weights, what noise, and how they move there and back."""
