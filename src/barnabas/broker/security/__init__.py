"""Authorization, authentication and quotas."""
