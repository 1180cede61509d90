"""AWS: clients that last, calls off the event loop, errors by what they mean. Knows no kind."""
