"""The only owner of tasks, connections and clocks: joins runners to stores and drives the machine."""
