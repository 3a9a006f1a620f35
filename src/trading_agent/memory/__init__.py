"""What a desk remembers: its sessions, summaries, lessons and waiting triggers."""
