-- SQL reads topics, too. The cluster is at $BARNABAS_BOOTSTRAP_SERVER, unless bootstrap => 'host:port' says otherwise.
CREATE STREAMING TABLE payments AS
SELECT payment.*, offset
FROM (
    SELECT from_json(CAST(value AS STRING), 'order_id BIGINT, paid_at TIMESTAMP') AS payment, offset
    FROM STREAM read_topic('payments')
);

CREATE MATERIALIZED VIEW turnover AS
SELECT customer, count(*) AS orders, sum(price) AS total FROM orders GROUP BY customer;
