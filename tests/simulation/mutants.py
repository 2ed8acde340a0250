"""Small wrongs, each put into what ships, one at a time: the simulation must notice every one.

A mutant is a piece of a source file and what stands there instead. It is put in when the module is loaded, so nothing of it is on disk. A mutant whose piece is gone from its file is out of date: a test says so.
"""

import importlib.machinery
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

SOURCE = Path(__file__).parents[2] / "src" / "barnabas"


@dataclass(frozen=True, slots=True)
class Mutant:
    #: What it does wrong, as a sentence.
    name: str
    #: Below `src/barnabas`.
    file: str
    old: str
    new: str

    @property
    def path(self) -> Path:
        return SOURCE / self.file

    def mutated(self) -> str:
        source = self.path.read_text()
        if source.count(self.old) != 1:
            raise LookupError(f"{self.name}: {self.file} has its piece {source.count(self.old)} times: {self.old!r}")
        return source.replace(self.old, self.new)

    def apply(self) -> None:
        """From now on: call it before the module is imported."""
        target, source = str(self.path), self.mutated()
        original = importlib.machinery.SourceFileLoader.get_code

        def get_code(loader: importlib.machinery.SourceFileLoader, fullname: str) -> CodeType | None:
            if loader.path == target:
                return compile(source, target, "exec", dont_inherit=True)
            return original(loader, fullname)

        importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


_ALL = [
    # -- replication: the machine of a partition
    Mutant(
        "the high watermark ignores the followers",
        "replication/machine.py",
        "                follower.in_maximal_isr\n                or (",
        "                False\n                or (",
    ),
    Mutant(
        "the high watermark moves while too few are in sync",
        "replication/machine.py",
        "if len(self.isr) < self._min_isr or self.role is not Role.LEADER:",
        "if self.role is not Role.LEADER:",
    ),
    Mutant(
        "acks=all is answered before the followers have the record",
        "replication/machine.py",
        "if self.high_watermark < required_offset:\n            return None",
        "if self.high_watermark < required_offset - 1:\n            return None",
    ),
    Mutant(
        "acks=all is answered whoever leads meanwhile",
        "replication/machine.py",
        "if self.role is not Role.LEADER or self.leaderships != leadership:",
        "if self.role is not Role.LEADER:",
    ),
    Mutant(
        "a lagging follower joins the ISR",
        "replication/machine.py",
        "if follower.log_end < self.high_watermark or follower.log_end < self.leader_epoch_start:\n            return None",
        "if False:\n            return None",
    ),
    Mutant(
        "a follower joins the ISR without what earlier leaders wrote",
        "replication/machine.py",
        "if follower.log_end < self.high_watermark or follower.log_end < self.leader_epoch_start:",
        "if follower.log_end < self.high_watermark:",
    ),
    Mutant(
        "a leader counts a shrunk ISR before the controller agrees",
        "replication/machine.py",
        "propose = self._propose(IsrChange.SHRINK, self.isr - lagging)",
        "propose = self._propose(IsrChange.SHRINK, self.isr - lagging)\n"
        "                for each in self._order:\n"
        "                    each.in_maximal_isr = each.in_maximal_isr and each.broker_id not in lagging",
    ),
    Mutant(
        "a lagging follower never leaves the ISR",
        "replication/machine.py",
        "            if lagging:\n",
        "            if lagging and False:\n",
    ),
    Mutant(
        "the end is told before the new leader knows what is committed",
        "replication/machine.py",
        "return self.role is Role.LEADER and self.leader_epoch_start > self.high_watermark",
        "return False",
    ),
    Mutant(
        "an old leader epoch is not fenced",
        "replication/machine.py",
        "            if current_leader_epoch < self.leader_epoch:\n                return ErrorCode.FENCED_LEADER_EPOCH",
        "            if current_leader_epoch < self.leader_epoch:\n                return ErrorCode.NONE",
    ),
    Mutant(
        "a fetch of a broker's former life counts",
        "replication/machine.py",
        "            if broker_epoch < follower.broker_epoch:",
        "            if False:",
    ),
    Mutant(
        "a follower takes the leader's high watermark though its log is shorter",
        "replication/machine.py",
        "committed = leader_high_watermark if leader_high_watermark < log_end else log_end",
        "committed = leader_high_watermark",
    ),
    Mutant(
        "a rejected ISR change is taken for accepted",
        "replication/machine.py",
        "        if error in _NOT_APPLIED:\n            self._commit_isr(self.isr)",
        "        if error in _NOT_APPLIED:\n            self._commit_isr(frozenset(each.broker_id for each in proposal.isr))",
    ),
    Mutant(
        "an ISR change that was lost is not repeated",
        "replication/machine.py",
        "return IsrSettled(applied=True, retry=proposal)",
        "return IsrSettled(applied=True)",
    ),
    Mutant(
        "an ISR change of an earlier leadership is applied",
        "replication/machine.py",
        "if proposal is not self._pending or leader_epoch != self.leader_epoch or partition_epoch < self.partition_epoch:",
        "if leader_epoch != self.leader_epoch:",
    ),
    # -- replication: requests of the controller
    Mutant(
        "a request for the broker's former life is obeyed (R1)",
        "replication/control.py",
        "    if current_epoch == NO_BROKER_EPOCH:\n        return True\n",
        "",
    ),
    Mutant(
        "a request for an earlier registration is obeyed",
        "replication/control.py",
        "return request_epoch != NO_BROKER_EPOCH and request_epoch < current_epoch",
        "return False",
    ),
    Mutant(
        "a controller of the past is obeyed",
        "replication/control.py",
        "return request_epoch < known_epoch",
        "return False",
    ),
    Mutant(
        "an old leader epoch is obeyed",
        "replication/control.py",
        "    if state.leader_epoch > current_leader_epoch:",
        "    if state.leader_epoch != current_leader_epoch:",
    ),
    Mutant(
        "StopReplica of an old epoch is obeyed",
        "replication/control.py",
        "or request_leader_epoch >= current_leader_epoch:",
        "or True:",
    ),
    Mutant(
        "one bad partition ends the whole LeaderAndIsr (R2)",
        "replication/control_requests.py",
        "        except (LogDirFault, Refused) as error:\n            # Of this",
        "        except LogDirFault as error:\n            # Of this",
    ),
    Mutant(
        "a new leader goes on fetching from the old one",
        "replication/control_requests.py",
        "        self._fetchers.remove([order.tp])\n        self._open_log(partition, order)\n",
        "        self._open_log(partition, order)\n",
    ),
    Mutant(
        "a follower does not follow its new leader",
        "replication/control_requests.py",
        "        elif must_refetch:\n",
        "        elif must_refetch and False:\n",
    ),
    Mutant(
        "the coordinators hear nothing of a new leader",
        "replication/control_requests.py",
        "                listener(led, followed)",
        "                listener([], followed)",
    ),
    Mutant(
        "the coordinators hear nothing of a lost leadership",
        "replication/control_requests.py",
        "                listener(led, followed)",
        "                listener(led, [])",
    ),
    # -- controller
    Mutant(
        "anybody alive is elected, in sync or not",
        "controller/elections.py",
        "leader = next((each for each in live if each in state.isr), None)\n    if leader is not None:\n        isr = tuple(each for each in state.isr if context.is_online(each, partition))\n",
        "leader = next(iter(live), None)\n    if leader is not None:\n        isr = (leader,)\n",
    ),
    Mutant(
        "the dead stay in the ISR after an election",
        "controller/elections.py",
        "isr = tuple(each for each in state.isr if context.is_online(each, partition))",
        "isr = tuple(state.isr)",
    ),
    Mutant(
        "a broker that is shutting down is elected",
        "controller/elections.py",
        "leader = next((each for each in alive if each in state.isr and each not in context.shutting_down), None)",
        "leader = next((each for each in alive if each in state.isr), None)",
    ),
    Mutant(
        "the leader epoch does not rise with an election",
        "coordination/znodes.py",
        "            self.leader_epoch + 1,\n",
        "            self.leader_epoch,\n",
    ),
    Mutant(
        "states are written without regard to their version",
        "controller/partition_machine.py",
        "SetData(paths.partition_state(partition), leadership.encode(), leadership.partition_epoch)",
        "SetData(paths.partition_state(partition), leadership.encode(), -1)",
    ),
    Mutant(
        "a broker that bounced is not noticed",
        "controller/broker_machine.py",
        "each for each in set(found) & set(context.brokers) if found[each][1] > context.broker_epochs[each]",
        "each for each in set(found) & set(context.brokers) if found[each][1] < 0",
    ),
    Mutant(
        "a broker that went is not noticed",
        "controller/broker_machine.py",
        "went = sorted(set(context.brokers) - set(found))",
        "went: list[int] = []",
    ),
    Mutant(
        "a new controller trusts who was away (Kafka's gap)",
        "controller/takeover.py",
        "younger = frozenset(each for each in state.isr if context.born(each) > written)",
        "younger: frozenset[int] = frozenset()",
    ),
    Mutant(
        "AlterPartition of an old leader epoch is granted",
        "controller/isr_machine.py",
        "        if proposed.leader_epoch < current.leader_epoch:\n            return ErrorCode.FENCED_LEADER_EPOCH\n",
        "",
    ),
    Mutant(
        "AlterPartition of an old partition epoch is granted",
        "controller/isr_machine.py",
        "        if proposed.partition_epoch < current.partition_epoch:\n            return ErrorCode.INVALID_UPDATE_VERSION\n",
        "",
    ),
    Mutant(
        "the dead are let into the ISR (KIP-841, KIP-903)",
        "controller/isr_machine.py",
        "        if not self._is_eligible(proposed):",
        "        if False:",
    ),
    Mutant(
        "a failed directory is not acted on",
        "controller/broker_machine.py",
        "            if error is ErrorCode.KAFKA_STORAGE_ERROR:\n                now.add(partition)",
        "            if error is ErrorCode.KAFKA_STORAGE_ERROR:\n                now.discard(partition)",
    ),
    Mutant(
        "two controllers at once",
        "controller/election.py",
        "    if (yield from who_is_controller()) == office.settings.broker_id:",
        "    if True:",
    ),
    Mutant(
        "a new controller keeps silent towards the replicas",
        "controller/takeover.py",
        "self._replicas.to_online(each for each in replicas if context.replica_state(each) is ReplicaState.ONLINE)",
        "self._replicas.to_online(iter(()))",
    ),
]

MUTANTS = {mutant.name: mutant for mutant in _ALL}
assert len(MUTANTS) == len(_ALL), "two mutants have one name"
