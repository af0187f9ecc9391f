"""Kills, full disks and damaged files, in numbers: what was survived, refused, lost or believed.

    python -m benchmarks.storm [--kills N] [--faults N] [--seed S] [--seconds T]

Every fault strikes a copy of a small run, export or comparison with workers. Then the same command
is given again, or `resume`, or what the line it was refused with says to do. What comes of it is
compared, bit for bit, with a run that nothing happened to: weights, optimiser, metrics without
their times, samples, losses.

survived   ended as the undisturbed one did, without a word or with a note that names the file
refused    ended with exit code 2 and one line, and as the undisturbed one after what it advises,
           where it advises anything but making it again
lost       a traceback, a hang, or no way to go on
believed   ended well with another result
"""
