// node kafkajs.js BOOTSTRAP SCENARIO TOPIC: exits with 0 when what kafkajs saw is what Kafka would show it.

const assert = require('assert')
const { CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = require('kafkajs')

const [, , bootstrap, scenario, topic] = process.argv
const kafka = new Kafka({ clientId: 'interop', brokers: bootstrap.split(','), logLevel: logLevel.ERROR })
const PARTITIONS = 3

/** Runs `body` with a connected producer, consumer or admin, and disconnects it whatever happens. */
const using = async (client, body) => {
  await client.connect()
  try {
    return await body(client)
  } finally {
    await client.disconnect()
  }
}

/** Until brokers that did not take part know of it: `check` answers true, or the run's time is over. */
const eventually = async check => {
  while (!(await check())) await new Promise(resolve => setTimeout(resolve, 20))
}

const createTopic = () =>
  using(kafka.admin(), admin =>
    admin.createTopics({ waitForLeaders: true, topics: [{ topic, numPartitions: PARTITIONS, replicationFactor: 3 }] })
  )

const numbered = (from, to) => Array.from({ length: to - from }, (_, i) => ({ key: `k${from + i}`, value: `v${from + i}` }))

/** Values that a group reads until it has `count` of them, sorted; every consumer must have had some. */
const consume = async (groupId, count, { members = 1 } = {}) => {
  const seen = []
  const by = new Set()
  const consumers = Array.from({ length: members }, () => kafka.consumer({ groupId, readUncommitted: false }))
  const joined = consumers.map(
    consumer =>
      new Promise((resolve, reject) => {
        consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
          const owned = payload.memberAssignment[topic] || []
          if (owned.length === PARTITIONS / members) resolve()
        })
        consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
      })
  )
  try {
    await new Promise((resolve, reject) => {
      const start = consumers.map(async (consumer, i) => {
        await consumer.connect()
        await consumer.subscribe({ topics: [topic], fromBeginning: true })
        await consumer.run({
          eachMessage: async ({ message }) => {
            await Promise.all(joined)
            by.add(i)
            seen.push(message.value.toString())
            if (seen.length >= count) resolve()
          },
        })
      })
      Promise.all([...start, ...joined]).catch(reject)
    })
  } finally {
    await Promise.all(consumers.map(consumer => consumer.disconnect()))
  }
  assert.strictEqual(by.size, members)
  return seen.sort()
}

const scenarios = {
  async produceAndConsume() {
    await createTopic()
    await using(kafka.producer({ idempotent: true }), async producer => {
      await producer.send({ topic, messages: numbered(0, 200), compression: CompressionTypes.GZIP })
      await producer.send({ topic, messages: numbered(200, 300) })
    })
    const expected = numbered(0, 300)
      .map(each => each.value)
      .sort()
    assert.deepStrictEqual(await consume(`${topic}-group`, 300, { members: 3 }), expected)
    await using(kafka.admin(), async admin => {
      const [{ partitions }] = await admin.fetchOffsets({ groupId: `${topic}-group`, topics: [topic] })
      assert.strictEqual(partitions.reduce((sum, { offset }) => sum + Number(offset), 0), 300)
      assert.strictEqual((await admin.describeGroups([`${topic}-group`])).groups[0].state, 'Empty')
      await admin.deleteGroups([`${topic}-group`])
    })
  },

  async transactions() {
    await createTopic()
    await using(kafka.producer({ transactionalId: `${topic}-id`, maxInFlightRequests: 1, idempotent: true }), async producer => {
      const aborted = await producer.transaction()
      await aborted.send({ topic, messages: numbered(0, 50) })
      await aborted.abort()
      const committed = await producer.transaction()
      await committed.send({ topic, messages: numbered(50, 100) })
      const offsets = { consumerGroupId: `${topic}-progress`, topics: [{ topic, partitions: [{ partition: 0, offset: '7' }] }] }
      await committed.sendOffsets(offsets)
      await committed.commit()
    })
    const expected = numbered(50, 100)
      .map(each => each.value)
      .sort()
    assert.deepStrictEqual(await consume(`${topic}-group`, 50), expected)
    const [progress] = await using(kafka.admin(), admin => admin.fetchOffsets({ groupId: `${topic}-progress`, topics: [topic] }))
    assert.strictEqual(progress.partitions.find(({ partition }) => partition === 0).offset, '7')
  },

  async administration() {
    await createTopic()
    await using(kafka.admin(), async admin => {
      await eventually(async () => (await admin.listTopics()).includes(topic))
      await admin.createPartitions({ topicPartitions: [{ topic, count: 5 }] })
      await eventually(async () => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length === 5)
      const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
      await admin.alterConfigs({ resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '60000' }] }] })
      await eventually(async () => {
        const { resources } = await admin.describeConfigs({ resources: [{ ...resource, configNames: ['retention.ms'] }] })
        return resources[0].configEntries[0].configValue === '60000'
      })
      await using(kafka.producer(), producer => producer.send({ topic, messages: [0, 1, 2].map(() => ({ partition: 0, value: 'x' })) }))
      await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '2' }] })
      const first = (await admin.fetchTopicOffsets(topic)).find(({ partition }) => partition === 0)
      assert.deepStrictEqual([first.low, first.high], ['2', '3'])
      // Whether it is gone cannot be asked: kafkajs looks for it afterwards, which may create it again.
      await admin.deleteTopics({ topics: [topic] })
    })
  },
}

scenarios[scenario]().then(
  () => process.exit(0),
  error => {
    console.error(error)
    process.exit(1)
  }
)
