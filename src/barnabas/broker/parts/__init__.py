"""The parts of a broker, each assembled from the layers below. `barnabas.broker.compose` composes them."""
