"""Where replies come from: what a model is asked and answers, the simulated ones, and how a name becomes a model."""
