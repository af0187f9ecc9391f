"""Serving: a trained model behind HTTP, with the completions protocol of OpenAI.

`engine` batches sequences of tokens on a thread of its own; `protocol` reads what is asked; `text`
turns tokens into what is sent; `app` is the web application. Needs `qkvflow[serve]`.
"""
