"""How one model family spells turns, thoughts and tool calls; knows no HTTP."""
