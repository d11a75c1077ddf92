"""Credentials of nothing, which must turn up nowhere."""

KEY_ID, SECRET = 'AKIAFAKEFAKEFAKEFAKE', 'fake+secret/0123456789abcdefghijklmnopqr'
