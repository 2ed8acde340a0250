"""What a broker can do without: each package here adds itself, and the layers around it do not know it."""
