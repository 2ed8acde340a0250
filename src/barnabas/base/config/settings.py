"""The settings that code reads as typed attributes of `BrokerConfig`.

An attribute has the setting's name in snake case. If several settings have one meaning, or the text has a structure, the
attribute has the result, as its comment says. Settings that listeners can override are read with
`BrokerConfig.for_listener`, and the defaults of topics through `LogConfig`; these have no attribute here. A test finds
attributes and settings that no code reads.
"""

from collections.abc import Mapping

from barnabas.base.config.definition import Password
from barnabas.base.config.listeners import Listener
from barnabas.base.words import SecurityProtocol


class BrokerSettings:
    # The broker.
    broker_id_generation_enable: bool
    reserved_broker_max_id: int
    #: -1: to be generated.
    broker_id: int
    background_threads: int
    request_timeout_ms: int
    socket_connection_setup_timeout_ms: int
    socket_connection_setup_timeout_max_ms: int
    authorizer_class_name: str
    broker_rack: str | None
    controlled_shutdown_max_retries: int
    controlled_shutdown_retry_backoff_ms: int
    controlled_shutdown_enable: bool
    delete_topic_enable: bool
    max_incremental_fetch_session_cache_slots: int
    fetch_max_bytes: int
    max_request_partition_size_limit: int

    # Network.
    #: Names are unique. Ports are unique, except 0.
    listeners: tuple[Listener, ...]
    #: Defaults to `listeners`; otherwise a subset of these names.
    advertised_listeners: tuple[Listener, ...]
    #: By upper-case listener name.
    listener_security_protocol_map: Mapping[str, SecurityProtocol]
    control_plane_listener_name: str | None
    socket_request_max_bytes: int
    socket_listen_backlog_size: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: Mapping[str, int]
    max_connections: int
    max_connection_creation_rate: int
    connections_max_idle_ms: int
    connection_failed_authentication_delay_ms: int
    queued_max_requests: int
    queued_max_request_bytes: int

    # ZooKeeper.
    zookeeper_connect: str
    zookeeper_session_timeout_ms: int
    #: Defaults to zookeeper.session.timeout.ms.
    zookeeper_connection_timeout_ms: int
    zookeeper_set_acl: bool
    zookeeper_max_in_flight_requests: int
    zookeeper_ssl_client_enable: bool
    zookeeper_ssl_keystore_location: str | None
    zookeeper_ssl_keystore_password: Password | None
    zookeeper_ssl_keystore_type: str | None
    zookeeper_ssl_truststore_location: str | None
    zookeeper_ssl_truststore_password: Password | None
    zookeeper_ssl_truststore_type: str | None
    zookeeper_ssl_protocol: str
    zookeeper_ssl_enabled_protocols: tuple[str, ...] | None
    zookeeper_ssl_cipher_suites: tuple[str, ...] | None
    zookeeper_ssl_endpoint_identification_algorithm: str

    # Log.
    num_partitions: int
    #: From log.dirs or log.dir. Never empty.
    log_dirs: tuple[str, ...]
    #: From log.roll.ms or log.roll.hours.
    log_roll_ms: int
    #: From log.roll.jitter.ms or log.roll.jitter.hours.
    log_roll_jitter_ms: int
    #: From log.retention.ms, .minutes or .hours; -1 for no limit.
    log_retention_ms: int
    #: From log.flush.interval.ms or log.flush.scheduler.interval.ms.
    log_flush_interval_ms: int
    auto_create_topics_enable: bool
    min_insync_replicas: int
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int

    # Replication.
    controller_socket_timeout_ms: int
    default_replication_factor: int
    replica_lag_time_max_ms: int
    num_replica_fetchers: int
    unclean_leader_election_enable: bool
    #: The protocol of the listener `inter_broker_listener_name`.
    security_inter_broker_protocol: SecurityProtocol
    #: Upper case; if it is not set, the listener is named by security.inter.broker.protocol.
    inter_broker_listener_name: str
    replica_selector_class: str | None

    # Groups and offsets.
    group_coordinator_rebalance_protocols: tuple[str, ...]
    offsets_topic_replication_factor: int
    offsets_topic_compression_codec: int
    offsets_commit_timeout_ms: int

    # Transactions.
    transaction_state_log_min_isr: int
    transaction_state_log_replication_factor: int
    transaction_partition_verification_enable: bool
    producer_id_expiration_ms: int

    # Share coordinator.
    share_coordinator_state_topic_compression_codec: int

    # Quotas.
    quota_window_num: int
    quota_window_size_seconds: int
    replication_quota_window_num: int
    replication_quota_window_size_seconds: int
    alter_log_dirs_replication_quota_window_num: int
    alter_log_dirs_replication_quota_window_size_seconds: int
    controller_quota_window_num: int
    controller_quota_window_size_seconds: int

    # TLS.
    ssl_allow_dn_changes: bool
    ssl_allow_san_changes: bool

    # SASL, tokens and passwords.
    sasl_server_max_receive_size: int
    sasl_mechanism_inter_broker_protocol: str
    #: Or from the deprecated delegation.token.master.key.
    delegation_token_secret_key: Password | None
    delegation_token_max_lifetime_ms: int
    delegation_token_expiry_time_ms: int
    delegation_token_expiry_check_interval_ms: int
    password_encoder_secret: Password | None
    password_encoder_old_secret: Password | None
    password_encoder_keyfactory_algorithm: str | None
    password_encoder_cipher_algorithm: str
    password_encoder_key_length: int
    password_encoder_iterations: int

    # Authorizer, and barnabas's own.
    super_users: frozenset[str]
    allow_everyone_if_no_acl_found: bool
    barnabas_zookeeper_digest: Password | None
    barnabas_request_max_elements: int
    barnabas_record_framing_check: bool
    barnabas_schema_registry_url: tuple[str, ...]
    barnabas_schema_registry_basic_auth_user_info: Password | None
    barnabas_schema_registry_bearer_auth_token: Password | None
    barnabas_schema_registry_ssl_ca_location: str | None
    barnabas_audit_log: str | None
    barnabas_audit_log_max_bytes: int
    barnabas_metrics_host: str
    barnabas_metrics_port: int
    barnabas_inside_enable: bool
    barnabas_client_metrics_max_series: int
    barnabas_client_metrics_otlp_endpoint: str | None
    barnabas_client_metrics_otlp_queue_bytes: int
    telemetry_max_bytes: int
    barnabas_otel_endpoint: str | None
    barnabas_otel_sample_ratio: float

    # Limits that exist only dynamically.
    leader_replication_throttled_rate: int
    follower_replication_throttled_rate: int
    replica_alter_log_dirs_io_max_bytes_per_second: int

    # Tiered storage.
    remote_log_storage_system_enable: bool
    barnabas_remote_storage_url: str | None
    remote_log_storage_manager_impl_prefix: str
    remote_log_metadata_manager_impl_prefix: str
    remote_log_reader_threads: int
    remote_log_reader_max_pending_tasks: int
    remote_log_index_file_cache_total_size_bytes: int
    remote_log_manager_fetch_max_bytes_per_second: int
    remote_log_manager_fetch_quota_window_num: int
    remote_log_manager_fetch_quota_window_size_seconds: int
    remote_fetch_max_wait_ms: int
    barnabas_remote_chunk_bytes: int
    barnabas_remote_chunk_cache_bytes: int
    barnabas_remote_read_ahead_bytes: int
