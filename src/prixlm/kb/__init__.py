"""Knowledge in: a dump becomes a KB folder."""
