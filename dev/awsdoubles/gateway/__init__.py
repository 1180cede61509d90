"""A double of AWS Storage Gateway: HTTP, JSON 1.1, with a real cached inventory for each file share. S3
Control answers beside it, for access points.

No emulator has one. What it promises is what the API model and the manuals say; what they leave open
stands behind a setting (`state.Settings`).
"""
