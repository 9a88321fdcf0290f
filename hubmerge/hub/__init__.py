"""The one door to the Hub: requests, typed answers, transfers, and the login of this machine."""
