"""Reviews of recorded runs by a model: causes of failures, suspected reward hacks, and faults of infrastructure.

It knows traces and chat models. A claim rests on steps that the model was shown; results are labels, whose agreement with people is
measured like any rater's.
"""
