"""The nouns: frozen values in which every other module speaks.

`observation` is what was seen, `node` what is remembered of it, `event` what happened.
"""
