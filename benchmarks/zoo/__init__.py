"""Every attention in two small hosts on two small data sets: ``python -m benchmarks.zoo``.

``plan`` says what is trained, ``training`` trains one, ``pool`` all of them, ``costs`` measures
time and memory, ``page`` writes table and chart.
"""
