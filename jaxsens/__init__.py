"""jaxsens."""
