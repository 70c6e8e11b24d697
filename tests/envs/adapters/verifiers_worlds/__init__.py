"""Small tasksets written for verifiers, as its users write them."""
