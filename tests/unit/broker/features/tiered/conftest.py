"""The files that a test leaves open, as a broker that dies would, are closed behind it: select() takes 1,024 descriptors."""

from tests.support.open_files import closed_behind_each_test as closed_behind_each_test
