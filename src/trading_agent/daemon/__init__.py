"""The running whole: desks, their supervisor and scheduler, and the sources that wake them."""
