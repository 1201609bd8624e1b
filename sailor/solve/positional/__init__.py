"""The programme that lays stages one by one, with kind sets and whole rooms."""
