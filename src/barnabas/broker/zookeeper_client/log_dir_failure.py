"""Reports a failed log directory to the controller."""

import asyncio
import logging

from barnabas.base.ids import BrokerId
from barnabas.broker.zookeeper_client import paths
from barnabas.broker.zookeeper_client.session import ZooKeeperSession
from barnabas.broker.zookeeper_client.zk_errors import SessionExpired
from barnabas.broker.zookeeper_client.znodes import encode_log_dir_event

log = logging.getLogger(__name__)

#: The pause before a report is repeated with the next session.
REPORT_RETRY_S = 1.0


async def report_log_dir_failure(session: ZooKeeperSession, broker_id: BrokerId) -> None:
    """Create the notification. The controller sees it, asks which replicas are offline, and elects other leaders."""
    while True:
        try:
            # `make_path`: a client may have deleted the parent znode.
            await session.create(paths.log_dir_event(), encode_log_dir_event(broker_id), sequence=True, make_path=True)
        except SessionExpired as error:
            log.warning("[broker %d] the failed log directory is not reported yet, trying again: %s", broker_id, error)
            await asyncio.sleep(REPORT_RETRY_S)
        else:
            return
