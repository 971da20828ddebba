"""The runtime: tasks, connections and clocks, and the code that joins runners to stores."""
