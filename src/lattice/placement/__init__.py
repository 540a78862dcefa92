"""Fleet placement: where does a service run, what does it cost, and why?"""
