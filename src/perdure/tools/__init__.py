"""What agents can do: `@tool`, the context a tool gets, the toolbox of an agent, and the running of one attempt."""
