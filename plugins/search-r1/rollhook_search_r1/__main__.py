"""`python -m rollhook_search_r1` is the command `rollhook-search-r1`."""

from rollhook_search_r1.cli import main

main(prog_name="rollhook-search-r1")
