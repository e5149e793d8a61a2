"""A program that says that it is there and then waits."""

from strop_verify.child_process import connect_to_parent

if __name__ == "__main__":
    end = connect_to_parent()
    end.send(b"r")
    end.recv(1)
