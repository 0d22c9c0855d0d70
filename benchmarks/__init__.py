"""What the product costs, held against what it cannot do without; see README.md."""
