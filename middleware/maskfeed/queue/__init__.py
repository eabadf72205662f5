"""Where requests wait for their candidate set, with a deadline and a name for every state."""
