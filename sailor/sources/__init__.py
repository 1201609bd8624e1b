"""Sources that ship with sailor: prices, profiles, networks, availability."""
