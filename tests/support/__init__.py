"""What tests of several rooms use: one home for each helper."""
