"""The parts of a broker, each put together from the layers below. `barnabas.broker.compose` composes them."""
