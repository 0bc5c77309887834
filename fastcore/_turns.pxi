# The lock that threads take in turns, of fastcore._kernels, which includes this file.

from _thread import allocate_lock


cdef class TurnLock:
    """A lock that goes to those who wait for it in the order in which they came; used by `with`, as threading.Lock.

    In C for the reason that HeldBlocks is: nothing comes between having it and knowing so.
    """

    cdef bint _is_held
    cdef list _waiting  # locks of threads that wait for their turn
    cdef list _watching  # of those that wait for its next release

    def __cinit__(self):
        self._waiting, self._watching = [], []

    @property
    def num_waiting(self) -> int:
        """Threads that wait for it, or for its release."""
        return len(self._waiting) + len(self._watching)

    def acquire(self, bint blocking=True) -> bool:
        if not self._is_held:
            self._is_held = True
            return True
        if not blocking:
            return False
        turn = allocate_lock()
        turn.acquire()
        self._waiting.append(turn)
        try:
            turn.acquire()
        except BaseException:  # from a signal handler
            if turn in self._waiting:
                self._waiting.remove(turn)
            else:
                self.release()
            raise
        return True

    cpdef release(self):
        """Hand it to whoever waits longest."""
        for watch in self._watching:
            watch.release()
        self._watching = []
        if self._waiting:
            self._waiting.pop(0).release()
        else:
            self._is_held = False

    def wait(self) -> bool:
        """If it is held, wait until it is released; else False, at once. Does not take it."""
        if not self._is_held:
            return False
        watch = allocate_lock()
        watch.acquire()
        self._watching.append(watch)
        watch.acquire()
        return True

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()
