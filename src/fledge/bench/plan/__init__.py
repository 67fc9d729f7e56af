"""`fledge plan`: a model's bytes, and a roofline of its speed, from its shape and a device's data sheet.

options.py  the user's assumptions
shape.py    weights and KV bytes from config.json        predict.py   seconds of a forward and of a round; the tables
"""
