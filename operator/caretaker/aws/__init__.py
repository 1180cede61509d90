"""AWS: pooled clients, calls outside the event loop, classified errors. Knows no kind."""
