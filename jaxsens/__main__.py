"""``python -m jaxsens``."""

from jaxsens.cli import main

main()
