"""`python -m art_ruler` is the command `art-ruler`."""

from art_ruler.cli import main

main()
