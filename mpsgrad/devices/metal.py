def unavailable_reason():
    return "being written"


def devices():
    return []
