"""Provider models through the Model classes of Pydantic AI: names, credentials, and the mapping both ways.

No module here imports Pydantic AI or an SDK before a model is called: that takes seconds and needs an extra.
"""
