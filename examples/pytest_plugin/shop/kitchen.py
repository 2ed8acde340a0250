"""The kitchen: makes what is ordered, and says so on another topic. aiokafka."""

import json

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer


async def cook(bootstrap: str, orders: str, ready: str, *, group: str, until: int) -> int:
    """Cook `until` orders and announce each; how many were announced."""
    consumer = AIOKafkaConsumer(orders, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest")
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
    await consumer.start()
    try:
        await producer.start()
        cooked = 0
        async for message in consumer:
            order = json.loads(message.value)
            await producer.send_and_wait(ready, json.dumps({**order, "hot": True}).encode(), key=message.key)
            cooked += 1
            if cooked == until:
                break
        await consumer.commit()
        return cooked
    finally:
        await producer.stop()
        await consumer.stop()
