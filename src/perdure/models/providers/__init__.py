"""Models of providers, through the Model classes of Pydantic AI: names, credentials, and the mapping both ways.

Nothing here imports Pydantic AI or an SDK before a model is asked: that takes seconds, and needs an extra.
"""
