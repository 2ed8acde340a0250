"""How a broker tells the controller that one of its log directories failed."""

import asyncio
import logging

from barnabas.base.ids import BrokerId
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.zk_errors import SessionExpired
from barnabas.broker.zookeeper_client.znodes import encode_log_dir_event

log = logging.getLogger(__name__)

#: The pause before the next session reports a failure that an expired one could not.
REPORT_RETRY_S = 1.0


async def report_log_dir_failure(session: ZooKeeperSession, broker_id: BrokerId) -> None:
    """The controller sees the notification, asks which replicas are offline, and elects others."""
    while True:
        try:
            # Also where somebody has deleted the place of such reports.
            await session.create(paths.log_dir_event(), encode_log_dir_event(broker_id), sequence=True, make_path=True)
        except SessionExpired as error:
            log.warning("a failed log directory is not reported yet: %s", error)
            await asyncio.sleep(REPORT_RETRY_S)
        else:
            return
