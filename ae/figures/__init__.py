"""What recipes draw with."""
