"""Whether what is on disk is whole and agrees with itself, and mending what can be mended without a doubt."""
