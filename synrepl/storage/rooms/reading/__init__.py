"""What readers get: events, states, graphs, explanations."""
